// Package prometheus is Test support: it shows that the dashboard and the rules in deploy work with
// a real Prometheus and a real cluster. `make prometheus` runs it. Its tests have the build tag
// prometheus, because they need that program.
package prometheus
