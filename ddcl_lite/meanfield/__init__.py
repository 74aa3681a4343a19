"""The second paper: tokens as particles on the sphere, the labels they keep, and where they end."""
