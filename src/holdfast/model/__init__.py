"""Pure values and rules: what a job is, what may happen to it, and what to write because of it.

Nothing here reads a clock, draws a random number, or touches a file. Start with `job.py`.
"""
