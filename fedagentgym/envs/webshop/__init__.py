"""WebShop: the shop, its rules, its search, and shops made from a seed. The environment is in `env`."""
