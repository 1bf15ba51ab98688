"""The backends: clients in this process or in workers, in Flower's simulation, or on machines of their own."""
