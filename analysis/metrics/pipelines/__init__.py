"""What each process group is for, by its description or by what it does, and where that puts each rank."""
