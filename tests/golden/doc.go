// Package golden runs the programs whose behaviour tidegate reproduces, and writes their answers down.
//
// It holds no logic of its own beyond making inputs: every delay comes out of client-go's workqueue limiters,
// golang.org/x/time/rate or crossplane-runtime's ratelimiter, every reading of a URL out of apiserver's RequestInfo.
// Limiters that read time.Now run inside a testing/synctest bubble, where the time stands still unless the test sleeps,
// so that nothing about them had to be replaced.
//
//	go test -count=1 .                        # writes vectors/*.json, the committed ones
//	go test -count=1 . -args -vectors /tmp/v  # writes them somewhere else
//
// The random inputs are seeded: the same modules give the same bytes.
package golden
