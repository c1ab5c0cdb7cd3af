"""Declaring tasks: turns a function into a task, and a call of it into bytes and policy."""
