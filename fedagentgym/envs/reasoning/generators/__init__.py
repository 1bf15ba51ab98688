"""Generated tasks: functions from (seed, index) to a problem, without downloads, all different by construction."""
