"""What a view is: its settings, its columns, and the number types of its vectors."""
