"""One update on several devices: the ranks of a `torch.distributed` group, each with a part of every weight (FSDP2)."""
