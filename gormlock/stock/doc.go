// Package stock sells what is counted in a row.
package stock
