"""Floor 7: the commands. Each lives in a module of its own and does little more than call the room that does the work."""
