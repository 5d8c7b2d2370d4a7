// Libraries that are loaded with RTLD_DEEPBIND: they find their own dependencies before anything
// that was preloaded, so their calls of hooked functions would go past the hooks.
//
// The flag stays as it was: a library is bound deeply because it brings other versions of what the
// program has, and would break without. Instead its imports of hooked functions, and no others, are
// turned to the hooks after it was loaded: at the next dlsym or dlopen, which is how anybody gets
// at what it holds. What its constructors did before that went past the hooks.
//
// Threads: any.
#pragma once

namespace ravenstore::interceptor::deep {

// Somebody loads a library with these flags.
void Opening(int mode);
// Turns what was loaded since. Costs nothing in a process that binds nothing deeply.
void RebindLoaded();

}  // namespace ravenstore::interceptor::deep
