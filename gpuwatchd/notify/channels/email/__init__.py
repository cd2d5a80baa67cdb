"""Mail, by SMTP."""
