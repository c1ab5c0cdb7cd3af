"""Declaring: how a function becomes a task, and how a call of it becomes bytes and policy."""
