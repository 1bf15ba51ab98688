"""Floor 3: playing episodes, learning from them, judging the result. Knows one site at a time; nothing of a federation."""
