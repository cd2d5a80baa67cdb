"""What people and machines see: questions and their answers."""
