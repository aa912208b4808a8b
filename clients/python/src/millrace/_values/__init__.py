"""Values and results as objects of the cluster: keys, headers, frames, pickles, arrays and exceptions."""
