"""The leaderboard as a page: results in, a folder of static files out. Plays nothing and changes no result."""
