print("repaired")
