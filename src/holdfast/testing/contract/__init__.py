"""The contract of an engine, as examples: one file for each verb, and the cases that broke other systems.

Every example uses the public verbs alone and checks the values that come back, so it can judge any engine. It does not
look at how an engine works inside, and in particular never at the ledger: two of our engines are the ledger, and a
judge must not be a relative.

Run it on an engine of your own, with nothing installed but Holdfast and pytest:

    pytest --pyargs holdfast.testing.contract --holdfast-engine=ADDRESS

or override the fixture `make_engine` in a `conftest.py` (see `holdfast.testing.conformance`). Each example gets an
empty store, and after each one `engine.audit()` must find nothing wrong. The run ends with a table: which guarantee
held.

Real time may flow under an example. Instants are compared with the `at` of the answer that set them, and time is moved
by the clock offset, never by waiting.
"""
