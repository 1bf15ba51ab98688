"""The report page of a run and its charts. Reads run folders; does not affect a run."""
