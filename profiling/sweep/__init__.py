"""`sweep`: run the cells of a grid one after another; resumable at any moment."""
