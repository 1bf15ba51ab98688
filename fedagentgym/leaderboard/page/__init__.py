"""The leaderboard as a page: static files made from results. This package plays nothing and changes no result."""
