"""Code that capture and analysis share, free of torch and pandas."""
