"""What the commands share: arguments, file systems, options of Beam, results."""
