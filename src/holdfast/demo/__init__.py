"""The demo: one SQLite file and two workers, one of which is killed. `make demo`, or `python -m holdfast.demo`.

Each numbered block on the screen is one function in `steps.py`. The tasks are in `tasks.py`; they behave as
`holdfast.kinds` says, so the counts are the same in every run. At the end everything is compared id by id.
"""
