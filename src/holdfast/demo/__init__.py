"""The demo: one SQLite file, two workers, one of which will not survive. `make demo`, or `python -m holdfast.demo`.

Each numbered block on the screen is one function in `story.py`; the tasks are in `tasks.py`, and they do what
`holdfast.kinds` says, so the counts are the same every run. At the end everything is compared id by id.
"""
