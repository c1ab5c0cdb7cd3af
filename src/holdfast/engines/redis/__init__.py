"""The ledger over Redis or Valkey: the rules run in the server, as Lua that is generated from the ledger."""
