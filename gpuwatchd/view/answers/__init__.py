"""What every verb answers: one struct each, built where it is described."""
