"""What simulated processes do (shapes) and the worlds they live in (worlds); used by simulate."""
