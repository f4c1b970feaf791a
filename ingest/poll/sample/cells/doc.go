// Package cells has what a page says of each rank before anything is computed:
// the inputs, their limits, and the rows by which their names are known. The
// readers of the page formats fill it.
package cells
