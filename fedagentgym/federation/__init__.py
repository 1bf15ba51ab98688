"""The exchange between a server and its clients, independent of what is learned and of where the clients run.

Messages and their bytes, `Clients.call`, client states that outlive workers, backends, aggregation rules, commits, faults.
Nothing here imports an algorithm, a model or torch.
"""
