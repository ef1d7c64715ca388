"""Make tables of constant size from logs of any size, in constant memory."""
