"""What is done to a log beside answering: trimming, erasing, copying it."""
