"""Floor 4: what happens between a server and its clients, whatever is learned and wherever the clients run.

Messages and their bytes, the seam `Clients.call`, client states that outlive workers, backends, aggregation rules, commits,
faults. Nothing here knows an algorithm, a model or torch.
"""
