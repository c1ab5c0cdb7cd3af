"""Handlers in a process of their own: `@jobs.task(isolate="process")`.

A worker starts a child process when it first runs such a task, and keeps it for later attempts. The child gets one
attempt at a time over a socket pair and runs the handler with its generator middleware. Leases, renewals, settlements
and the async middleware stay in the worker, so whatever happens to the child concerns one attempt.

    worker                                           child: python -m holdfast.isolation.child
        frames.py           what both send               child.py       start, threads, end
        process.py          one child                    loading.py     the modules, the App, the task
        children.py         the children of a worker     running.py     one attempt
        environment.py      the child's environment      surrounds.py, handler_errors.py   used by the worker, too
"""
