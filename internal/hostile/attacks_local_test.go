package hostile

func attackWindow(a *arena) error         { return nil }
func attackDescriptors(a *arena) error    { return nil }
func attackReadOnlyWindow(a *arena) error { return nil }
func attackTakenBack(a *arena) error      { return nil }
