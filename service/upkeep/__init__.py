"""What a service does beside answering: trimming what is old, erasing what someone wants gone."""
