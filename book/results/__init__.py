"""Full-scale results as JSON, stored by the commands that made them; installed as `ddcl_lite.results`."""
