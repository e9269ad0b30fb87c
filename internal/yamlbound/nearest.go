package yamlbound

// Nearest returns the key that is meant by one that is none of them, "" if it is like
// none.
func Nearest(key string, keys []string) string {
	best, least := "", 3
	for _, k := range keys {
		if d := distance(k, key); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance returns how many insertions, deletions and replacements turn a into
// b. Long strings are not worth comparing and are far apart.
func distance(a, b string) int {
	if len(a) > 32 || len(b) > 32 {
		return 32
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
