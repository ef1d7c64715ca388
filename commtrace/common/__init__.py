"""What capture and analysis share: free of torch and pandas."""
