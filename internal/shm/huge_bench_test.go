package shm

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkPages copies 1 MiB after the other between two pieces of memory, in
// turns in small pages and in huge ones, and shows the median of either.
func BenchmarkPages(b *testing.B) {
	const size = 1 << 20
	for _, span := range []int64{2 << 20, 16 << 20, 64 << 20} {
		b.Run(fmt.Sprintf("%dMiB", span>>20), func(b *testing.B) {
			pages := map[HugePages][2]*Region{}
			for _, h := range []HugePages{HugeOff, HugeRequire} {
				pages[h] = [2]*Region{paged(b, h, span), paged(b, h, span)}
			}
			took := map[HugePages][]time.Duration{}
			at := int64(0)
			for b.Loop() {
				for h, r := range pages {
					began := time.Now()
					if err := Copy(r[0].Bytes()[at:at+size], r[1].Bytes()[at:at+size]); err != nil {
						b.Fatal(err)
					}
					took[h] = append(took[h], time.Since(began))
				}
				at = (at + size) % span
			}
			for h, name := range map[HugePages]string{HugeOff: "small-MB/s", HugeRequire: "huge-MB/s"} {
				slices.Sort(took[h])
				b.ReportMetric(size/took[h][len(took[h])/2].Seconds()/1e6, name)
			}
		})
	}
}

// paged returns fresh memory with pages according to h, every one of them written.
func paged(b *testing.B, h HugePages, n int64) *Region {
	r, err := Create("bench", n)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(r.Release)
	if _, err := h.Apply(r); err != nil {
		b.Skip(err)
	}
	for i := range r.Bytes() {
		r.Bytes()[i] = byte(i)
	}
	return r
}

// BenchmarkCreate measures the creation of memory, in small pages and in huge ones.
func BenchmarkCreate(b *testing.B) {
	for _, n := range []int64{2 << 20, 16 << 20} {
		for _, h := range []HugePages{HugeOff, HugeRequire} {
			b.Run(fmt.Sprintf("%dMiB/%v", n>>20, h), func(b *testing.B) {
				for b.Loop() {
					r, err := Create("bench", n)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := h.Apply(r); err != nil {
						b.Skip(err)
					}
					r.Release()
				}
			})
		}
	}
}
