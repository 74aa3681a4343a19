"""What surrounds the chapters, and the tool that exports them."""
