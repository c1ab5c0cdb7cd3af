"""The contract of an engine, as examples: one file for each verb, and the cases that broke other systems.

Every example calls only the public verbs and checks their answers, so it can test any engine. It does not depend on the
internals of an engine. It never imports the ledger: two of our engines run the ledger, so an example based on the
ledger would repeat its mistakes.

Run the suite on your own engine. It needs only Holdfast and pytest:

    pytest --pyargs holdfast.testing.contract --holdfast-engine=ADDRESS

or override the fixture `make_engine` in a `conftest.py` (see `holdfast.testing.conformance`). Each example gets an
empty store, and after each one `engine.audit()` must find no problem. The run ends with a table that shows which
guarantee the engine keeps.

Real time may pass during an example. An instant is compared with the `at` of the answer that set it. An example moves
time by the clock offset and never waits.
"""
