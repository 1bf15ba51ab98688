"""The report page of a run, its charts, and the TensorBoard observer. Reads run folders; does not affect a run."""
