"""Shared by several algorithms: the runtime of a process, replies, arrays in states, tasks in messages, scoring."""
