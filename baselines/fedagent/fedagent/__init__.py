"""FedAgent as an app of Flower."""
