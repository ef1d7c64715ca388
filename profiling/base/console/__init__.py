"""What people read: messages, a progress line, and tables as plain text. Knows no torch."""
