"""U7, U8 and U14."""
