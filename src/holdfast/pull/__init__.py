"""PullWorkers: a process that takes jobs by itself, beside or instead of a worker."""
