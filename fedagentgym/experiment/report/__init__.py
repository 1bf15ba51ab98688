"""The report page of a run, its charts, and the TensorBoard observer. Reads run folders; takes no part in a run."""
