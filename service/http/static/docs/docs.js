// Swagger UI over the description of this service. Relative, so that it holds behind a proxy that
// serves Forage under a path.
window.SwaggerUIBundle({
  url: "../openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  showCommonExtensions: true,
  validatorUrl: null, // its badge would come from another host
});
