package browser

import _ "embed"

// inspector is evaluated in a page and leaves an object of that name, which
// looks at the page as a person does.
//
//go:embed inspector.js
var inspector string
